"""The demo: the whole product on one machine, started in order, shown at work, and stopped without a trace.

It imports no Django: the product runs in processes of its own, with an environment that is made here.
"""
