"""Synthetic clips with exact ground truth: our hand model rendered in MuJoCo.

``episode`` draws scripts from a seed: ``behaviour`` plans the hands, ``grasps`` and ``grasp_fit``
their grasps, ``appearance`` looks, lens and sensor. ``rendering`` poses and renders scripts with
``scene``, and ``job`` fills a store. MuJoCo is imported when a scene is built.
"""
