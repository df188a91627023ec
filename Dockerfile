# One image for every component: triggers, plugins and tasks import the same code.
FROM apache/airflow:3.3.2-python3.11

COPY requirements.txt /requirements.txt
RUN pip install --no-cache-dir --requirement /requirements.txt

COPY --chown=airflow:0 dags /opt/airflow/dags
COPY --chown=airflow:0 plugins /opt/airflow/plugins
COPY --chown=airflow:0 include /opt/airflow/include

# Volumes take the owner of the folder they are mounted on.
RUN mkdir -p /opt/airflow/storage /opt/airflow/auth /opt/airflow/emulator

ENV PYTHONPATH=/opt/airflow
WORKDIR /opt/airflow
