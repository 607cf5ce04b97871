"""Amazon Bedrock: model invocation logs, the output of batch inference, and pairs of Converse requests and responses.

A log record {schemaType: "ModelInvocationLog", operation, modelId, input: {inputBodyJson}, output: {outputBodyJson}}, a batch
line {recordId, modelInput, modelOutput | error}, or {request, response} of the Converse API; a streamed response may be the
list of its events. Bodies may be those of the Converse API, of Anthropic or of OpenAI, or a prompt and its completion (Llama,
Mistral, Titan, Cohere, ...). Embeddings and images are counted and skipped. Bedrock writes a body of more than 100 KB to an
object of its own: such a record is quarantined (`body_in_s3`).
"""

from __future__ import annotations

from model_ops.chat_apis import bodies, is_pair
from resources.records.formats.format import Format
from resources.records.providers.bedrock_bodies import is_converse


def recognises(record: dict) -> bool:
    if record.get("schemaType") == "ModelInvocationLog" or "modelInput" in record:
        return True
    if not is_pair(record):
        return False
    request, response = bodies(record)
    if not isinstance(request.get("messages"), list) or "choices" in response:
        return False
    return is_converse(request, response)


FORMAT = Format("bedrock", recognises)
