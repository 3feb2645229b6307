"""Loops that a plan runs itself: a call made per item, or until something holds, and bodies of several (R16.1, R16.4).

`reading` judges a loop before anything runs, `running` carries it through its iterations, each of which is a plan of its own.
"""
