from .external.study import PrivateStudy as PrivateStudy
