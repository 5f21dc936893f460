from .external.mlflow_records import log_record as log_record
