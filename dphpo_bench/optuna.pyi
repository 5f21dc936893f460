from .external.optuna_study import PrivateStudy as PrivateStudy
