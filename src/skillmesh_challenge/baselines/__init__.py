"""Baselines: published lifelong learners that run as methods of the challenge.

    settings/    common settings, and the settings of each family with their sources (no torch)
    methods.py   every baseline by name (no torch)
    tuning.py, trials.py   hyperparameter search on validation images, with the same budget for every method
    play.py      runs one learner: learn a task, test all known tasks, save a checkpoint, resume after a kill
    learner.py   the interface of a learner
    data.py      the images of a task as tensors
    network.py   the trainable network: a body with the initial weights of our backbone, one head per task
    trainer.py   the sequential trainer; every method that trains a network is a subclass of it
    importance.py  the regularisation penalty on important weights, for ewc.py, si.py and mas.py
    isolation.py, superposition.py, task_inference.py   the parts of PSP and SupSup
    ewc.py … supsup.py, nearest_mean.py … fecam.py   one file per method

Importing `skillmesh_challenge.baselines.methods` registers them for `skillmesh challenge run --method`.
"""
