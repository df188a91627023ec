"""The launcher: PostgreSQL, the emulator and a real Airflow as processes of this machine."""
