"""Spectra of pooled vectors, whole and with each fold of prompts left out: where standard errors come from."""
