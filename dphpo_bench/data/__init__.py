"""Datasets on disk: found in a mirror or downloaded, decoded, checked, and turned into cached features."""
