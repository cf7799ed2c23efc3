"""A run folder as one HTML page that opens offline.

``command`` is the command line, ``reading`` and ``samples`` read what a run left or is still writing, ``figures`` says
which curves are drawn, and ``page`` puts it together. Nothing here imports torch or Lightning.
"""
