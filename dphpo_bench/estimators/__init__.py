"""Methods as estimators of scikit-learn."""
