"""Time to accuracy: learning over simulated seconds."""
