from typing import Any

from django.db import migrations

from ..messages import StoredMessage, call_digest, fingerprint


def know_kept_messages(apps: Any, schema_editor: Any) -> None:
    """Store digests of stored messages: the collector recognises other messages of the same ids by them."""
    models = {name: apps.get_model("rmq_delay", name) for name in ("TaskRecord", "Payload", "CollectedMessage")}
    rows = {name: model.objects.using(schema_editor.connection.alias) for name, model in models.items()}
    for payload in rows["Payload"].iterator(chunk_size=20):
        kept = StoredMessage(bytes(payload.body), bytes(payload.headers), payload.properties)
        rows["TaskRecord"].filter(pk=payload.record_id).update(call_digest=call_digest(kept))
        rows["CollectedMessage"].bulk_create(
            [models["CollectedMessage"](digest=fingerprint(kept), record_id=payload.record_id)], ignore_conflicts=True
        )


class Migration(migrations.Migration):
    dependencies = [
        ("rmq_delay", "0002_lives"),
    ]

    operations = [
        migrations.RunPython(know_kept_messages, migrations.RunPython.noop),
    ]
