"""A run folder as one HTML page that opens offline.

``command`` is the command line; ``reading``, ``metrics`` and ``samples`` read what a run left or is still writing;
``figures`` says what is drawn and put into tables, and ``page`` puts it together. Nothing here imports torch or
Lightning.
"""
