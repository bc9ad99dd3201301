"""The half of the hub's interface that takes files: a repository made, large files put aside, and
one commit of all."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.faults.hub import Hub, Request

_UPLOAD = re.compile(
    r"/api/models/(?P<repo>[^/]+/[^/]+)/(?P<what>preupload|commit)/(?P<revision>[^/]+)"
)
_BATCH = re.compile(r"/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch")


def takes(request: Request, hub: Hub, body: bytes) -> bool:
    """Answer a request that sends something; False for any other. Who has no token is refused."""
    from tests.faults.hub import LARGE, Repository

    path, found = request.path, _UPLOAD.fullmatch(request.path)
    if path == "/api/validate-yaml":
        return request.status(200, text=json.dumps({"errors": [], "warnings": []}))
    if request.method == "PUT" and path.startswith("/lfs/"):
        oid = path.removeprefix("/lfs/")
        hub.large[oid] = body
        return request.status(200 if hashlib.sha256(body).hexdigest() == oid else 400)
    if path != "/api/repos/create" and found is None and _BATCH.fullmatch(path) is None:
        return False
    if request.handler.headers.get("Authorization") != f"Bearer {hub.token}":
        return request.status(401, {"X-Error-Message": "Invalid username or password."})
    if path == "/api/repos/create":
        asked = json.loads(body)
        name = f"{asked['organization'] or 'me'}/{asked['name']}"
        if name in hub.models:
            return request.status(409, text=json.dumps({"error": "exists"}))
        hub.models[name] = Repository({"main": {}}, private=asked.get("visibility") == "private")
        return request.status(200, text=json.dumps({"url": f"{hub.address}/{name}"}))
    if found is None:
        objects = [
            {
                **{key: one[key] for key in ("oid", "size")},
                "actions": {"upload": {"href": f"{hub.address}/lfs/{one['oid']}"}},
            }
            for one in json.loads(body)["objects"]
        ]
        return request.status(200, text=json.dumps({"transfer": "basic", "objects": objects}))
    if found["what"] == "preupload":
        files = [
            {
                "path": one["path"],
                "uploadMode": "lfs" if one["path"].endswith(LARGE) else "regular",
                "shouldIgnore": False,
            }
            for one in json.loads(body)["files"]
        ]
        return request.status(200, text=json.dumps({"files": files}))
    main = dict(hub.models[found["repo"]].revisions["main"])
    for line in map(json.loads, body.splitlines()):
        if line["key"] == "file":
            main[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        elif line["key"] == "lfsFile":
            main[line["value"]["path"]] = hub.large[line["value"]["oid"]]
        elif line["key"] == "deletedFile":
            del main[line["value"]["path"]]
    repository = hub.models[found["repo"]]
    repository.revisions["main"] = main
    commit = repository.commit("main")
    address = f"{hub.address}/{found['repo']}/commit/{commit}"
    return request.status(
        200, text=json.dumps({"success": True, "commitOid": commit, "commitUrl": address})
    )
