"""The recorder of a live server: its last calls of graph runners, in a file that outlives it.

Only the standard library is imported, as processes are recorded that have nothing else of this project.
"""
