"""The standard-library logger of our Faust classes."""

import logging

LIFE_CYCLE = logging.getLogger("faust.engine")
"""Below `faust`, so that its starts and stops can be quieted together; by default it would be the module's."""
