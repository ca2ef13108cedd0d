"""preStop of an engine: returns when vLLM can be stopped without cutting a stream.

    wait_until_idle.py URL LEAVE_S DRAIN_S

vLLM cuts its streams on SIGTERM. So it serves on until Headway sends it no more calls and the last one has ended:

1. Wait LEAVE_S. A pod that ends leaves the headless Service at once, but Headway learns of it late: an answer of DNS
   may be 30 s old, and three answers without the pod are needed. Calls that arrive meanwhile are served.
2. Wait until no request runs or waits, at most DRAIN_S longer.

If nothing listens at URL, there are no streams and nothing to wait for.
"""

import sys
import time
import urllib.error
import urllib.request

COUNTED = ("vllm:num_requests_running", "vllm:num_requests_waiting")


def requests_in(page: str) -> float:
    """The requests that run or wait, by vLLM's metrics."""
    samples = (line.split() for line in page.splitlines())
    return sum(float(sample[-1]) for sample in samples if sample and sample[0].partition("{")[0] in COUNTED)


def requests_at(url: str) -> float | None:
    """None if nothing listens there. An engine that is too busy to answer counts as one request."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
            return requests_in(answer.read().decode())
    except urllib.error.URLError as error:
        return None if isinstance(error.reason, ConnectionRefusedError) else 1
    except OSError:
        return 1


def wait(url: str, leave_s: float, drain_s: float) -> None:
    began_at = time.monotonic()
    while (waited_s := time.monotonic() - began_at) < leave_s + drain_s:
        requests = requests_at(url)
        if requests is None or (requests == 0 and waited_s >= leave_s):
            return
        time.sleep(1)


if __name__ == "__main__":
    wait(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
