"""``python -m tests.product``"""

import sys

from tests.product.run import main

sys.exit(main())
