"""What a researcher would run instead: lifelong learners of the literature, as methods of the challenge.

    settings/    what all have in common, and each family's own settings with their sources (no torch)
    methods.py   every baseline by name (no torch)
    tuning.py, trials.py   the same budget of settings for every method, on validation images
    play.py      one learner through a run: learn, test all known tasks, keep it, go on after a kill
    learner.py   what a run asks of a learner
    data.py      a task's images as tensors
    network.py   the trainable network: a body from the same start as ours, one head per task
    trainer.py   the one sequential trainer; a method that trains is a subclass that says what it does differently
    importance.py  the springs on weights that mattered, for ewc.py, si.py and mas.py
    isolation.py, superposition.py, telling.py   what PSP and SupSup are made of
    ewc.py … supsup.py, nearest_mean.py … fecam.py   one file per method

`import skillmesh_challenge.baselines.methods` gives them their names for `skillmesh challenge run --method`.
"""
