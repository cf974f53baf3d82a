"""`shoal` with a fake node behind it: the real command line, lock, log and API in a real process."""

import sys
import types
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from shoal.node.client.cli import main
    from tests.fake_service import run_fake

    sys.modules["shoal.node.daemon.daemon"] = types.ModuleType("shoal.node.daemon.daemon")
    sys.modules["shoal.node.daemon.daemon"].run = run_fake  # type: ignore[attr-defined]
    main()
