"""State as it was: what a call, or a program that it runs, changes in the process or in modules is put back.

``process``  the settings of the process, one reader and one writer each, and ``state_kept`` for public functions
``modules``  buffers, modes, hooks, gradients and attributes of the modules that a program is made of
``effects``  both round one native run, and word of what the program changed
"""
