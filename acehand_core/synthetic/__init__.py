"""Rendered recordings with exact ground truth: our hand model in MuJoCo.

``scene`` draws one moment, ``script`` says what moves, ``clip`` renders a script frame by frame and
returns the truth beside it, ``two_hands`` is the story of the example clip. ``episode`` makes
scripts from a seed (``behaviour``: what hands do; ``decor``: what it looks like), ``film`` draws
them through ``lens`` and ``sensor``, and ``job`` fills a store with them. MuJoCo is imported when a
scene is built, not before.
"""
