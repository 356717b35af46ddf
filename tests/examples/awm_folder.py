"""A small folder in the AgentWorldModel format, with programs of our own and faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CODE = """
import os
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import Column, Integer, String, create_engine
from sqlalchemy.orm import declarative_base, sessionmaker

engine = create_engine(os.getenv("DATABASE_PATH"), connect_args={"check_same_thread": False})
Session = sessionmaker(bind=engine)
Base = declarative_base()

class Row(Base):
    __tablename__ = "messages"
    id = Column(Integer, primary_key=True)
    phone_number = Column(String)
    content = Column(String)

class NewMessage(BaseModel):
    phone_number: str
    content: str

app = FastAPI()

@app.get("/messages/{message_id}")
def get_message(message_id: int):
    with Session() as session:
        row = session.get(Row, message_id)
        if row is None:
            raise HTTPException(404, "no such message")
        return {"id": row.id, "content": row.content}

@app.post("/messages")
def send(message: NewMessage):
    with Session() as session:
        row = Row(phone_number=message.phone_number, content=message.content)
        session.add(row)
        session.commit()
        return {"id": row.id}

if __name__ == "__main__":
    raise SystemExit("a server was started")
"""
SENT = """
import sqlite3

def verify_task_completion(initial_db_path, final_db_path, final_answer=None):
    def rows(path):
        with sqlite3.connect(path) as connection:
            return connection.execute("select phone_number, content from messages").fetchall()
    new = rows(final_db_path)[len(rows(initial_db_path)):]
    return {"result": "complete" if new == [("+15550001111", "hello")] else "others"}
"""
HEAD = "def verify_task_completion(initial_db_path, final_db_path):\n    "
ALWAYS = HEAD + "return {'result': 'complete'}\n"
BROKEN = HEAD + "raise KeyError('x')\n"


def given(kind: str, place: str) -> dict[str, Any]:
    """An argument of an endpoint."""
    return {"type": kind, "param_type": place, "required": True}


SEND = {
    "method": "POST",
    "path": "/messages",
    "operation_id": "send_message_with_phone_number",
    "summary": "Send a text message; gives its id.",
    "request_params": {"phone_number": given("str", "body"), "content": given("string", "body")},
}
READ = {
    "method": "get",
    "path": "/messages/{message_id}",
    "operation_id": "get_message",
    "summary": "One message",
    "description": "One message.",
    "request_params": {"message_id": given("int", "path")},
}
ENDPOINTS = [SEND, READ, {"method": "GET", "path": "/nameless"}]
SPEC = {"api_groups": [{"group_name": "messages", "endpoints": ENDPOINTS}]}
DDL = "CREATE TABLE messages (id INTEGER PRIMARY KEY, phone_number TEXT, content)"
INDEXES = ["CREATE INDEX by_number ON messages (phone_number)", "CREATE nonsense"]
SCHEMA = {"tables": [{"name": "messages", "ddl": DDL, "indexes": INDEXES}]}
INSERTS = [
    "INSERT INTO messages (phone_number, content) VALUES ('+15550002222', 'old')",
    "INSERT INTO nowhere VALUES (1)",
]
ROWS = {"tables": [{"table_name": "messages", "insert_statements": INSERTS}]}
ASK = "Send a message to +15550001111 saying hello please."


def write(folder: Path, **changed: Any) -> Path:
    """Scenarios `texts_1` to `texts_3`, each with a task that can be learned, one that is always
    solved, one whose program breaks and one without a program; and a scenario without code."""
    names = ("texts_1", "texts_2", "texts_3")
    files: dict[str, list[dict[str, Any]]] = {
        "gen_tasks.jsonl": [{"scenario": n, "tasks": [ASK] * 4} for n in (*names, "empty")],
        "gen_db.jsonl": [{"scenario": n, "db_schema": SCHEMA} for n in names],
        "gen_sample.jsonl": [{"scenario": n, "sample_data": ROWS} for n in names],
        "gen_spec.jsonl": [{"scenario": n, "api_spec": SPEC} for n in names],
        "gen_envs.jsonl": [{"scenario": n, "full_code": CODE} for n in names],
        "gen_verifier.pure_code.jsonl": [
            {"scenario": n, "task_idx": i, "verification": {"code": code}}
            for n in names
            for i, code in enumerate((SENT, ALWAYS, BROKEN))
        ],
    }
    files |= changed
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        if lines is not None:
            (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
