"""The papers, executed: a folder per paper, a module per figure or table, and what measures, draws and reports."""
