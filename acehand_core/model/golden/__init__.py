"""``acehand golden-check``: reference outputs of the released code, reproduced through ours."""
