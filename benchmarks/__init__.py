"""Speed and quality, measured side by side; each file is one command."""
