"""Errors, texts, files and progress; imports no other room."""
