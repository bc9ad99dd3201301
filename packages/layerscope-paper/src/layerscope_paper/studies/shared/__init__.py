"""Functions that several studies use: models, profiles, vectors, numbers and figures."""
