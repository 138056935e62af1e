"""What public functions refuse, in a sentence that helps: a module for each room, a line for each refusal.

A row is a case of `garbage.CASES`, the arguments that differ from its good ones, and a regular expression that is found
in ``TypeError: x must be ...``. That an error names its argument is what `test_some_garbage` sees for all of them: rows
are for sentences that give advice, and for arguments that do not go together.
"""
