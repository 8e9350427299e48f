"""What Alembic runs: the migrations, over the connection that `database.py` hands in."""

from alembic import context

from gateway.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite changes a table by copying it.
    render_as_batch=True,
    transactional_ddl=False,
)
context.run_migrations()
