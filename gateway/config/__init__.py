"""Files that decide: their models, their loader, their versions."""
