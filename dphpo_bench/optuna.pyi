from .external.optuna_study import PrivateStudy as PrivateStudy
from .external.optuna_trial import PrivateTrial as PrivateTrial
