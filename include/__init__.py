"""The domain: bulk LLM and embedding work for retrieval, in plain Python without Airflow."""
