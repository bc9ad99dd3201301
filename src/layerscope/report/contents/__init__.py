"""What a report says, whatever its format: curves, scores, correlations, notices and marks, from any kind of run."""
