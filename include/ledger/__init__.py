"""The ledger: a PostgreSQL schema that says what was asked for, sent, paid and published."""
