"""Starts collectors without waiting for Django each time: a process with everything loaded, which forks.

Each line on stdin starts a collector with these arguments. The answer is its process id, and "ended" after its end.
"""

import os
import sys

import django

django.setup()

from django.core.management import call_command  # noqa: E402 - needs the settings

from celery_rmq_delay.contrib.django import history_files  # noqa: E402, F401 - pyarrow takes its time, too
from celery_rmq_delay.contrib.django.management.commands import rmq_delay_collect  # noqa: E402

for line in sys.stdin:
    child = os.fork()
    if not child:
        call_command(rmq_delay_collect.Command(stdout=sys.stderr), *line.split())
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("ended", flush=True)
