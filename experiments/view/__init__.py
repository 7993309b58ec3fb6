"""View: replays as one page that a browser shows."""
