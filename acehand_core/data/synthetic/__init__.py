"""Rendered recordings with exact ground truth: our hand model in MuJoCo.

``scene`` draws one moment, ``script`` says what moves, ``clip`` renders a script frame by frame and
returns the truth beside it, ``two_hands`` is the story of the example clip. MuJoCo is imported when
a scene is built, not before.
"""
