"""The database: SQLAlchemy Core, one file per table family, one function per statement, ``tx`` first."""
