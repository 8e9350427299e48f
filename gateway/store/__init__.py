"""What is kept: tables, migrations, one repository per concept."""
