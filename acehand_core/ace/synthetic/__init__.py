"""Rendered recordings with exact ground truth: our hand model in MuJoCo.

``scene`` draws one moment of what ``layout`` puts into it, ``script`` says what moves when.
``episode`` makes scripts from a seed: ``behaviour`` plans the hands, ``head`` the head, ``grasps``
how hands hold objects (fitted by ``grasp_fit``), ``appearance`` what everything looks like, through
which lens and sensor. ``rendering`` makes pictures of them with the truth beside them, and ``job``
fills a store.
MuJoCo is imported when a scene is built, not before.
"""
