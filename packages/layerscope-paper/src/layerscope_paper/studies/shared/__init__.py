"""What several studies need: profiles of their models, intervals over prompts, and axes."""
