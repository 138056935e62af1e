"""What a computer offers, and what every other room stands on: backends, threads, memory, files, small products."""
