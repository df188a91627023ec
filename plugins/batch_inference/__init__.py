"""Everything that imports Airflow: operators, the sensor, its triggers, connections, the DAG factory."""
