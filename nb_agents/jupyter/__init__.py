"""The notebook interface: magics, live panels, static cards, and stops through the kernel.

Only this package imports IPython, ipykernel and anywidget.
"""
