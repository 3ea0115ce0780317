"""Types of queues and databases: the quick suite has quorum queues and PostgreSQL, and both where they differ."""

import pytest

from tests.support.corpus import slow

#: The parameters of the fixtures `queue_type` and `database`: the first one is quick.
QUEUE_TYPES = ("quorum", slow("classic"))
DATABASES = ("postgres", slow("sqlite"))

#: For tests in which the type of the queue decides what the broker does.
BOTH_TYPES = pytest.mark.parametrize("queue_type", ["quorum", "classic"])
#: For tests whose statements differ between the databases.
BOTH_DATABASES = pytest.mark.parametrize("database", ["postgres", "sqlite"], indirect=True)
#: The same for the fixture `tables`, which is SQLite where a test has no mark.
BOTH_TABLES = pytest.mark.parametrize("tables", ["postgres", "sqlite"], indirect=True)
#: For tests whose queries hardly differ: PostgreSQL in the quick suite.
POSTGRES_TABLES = pytest.mark.parametrize("tables", DATABASES, indirect=True)
