"""A receiver: answers 200 and writes each idempotency key to the file `ledger`.

usage: backend.py PORT [SECONDS-TO-THINK [CERTIFICATE KEY]]
"""
import ssl
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

THINK = float(sys.argv[2]) if len(sys.argv) > 2 else 0


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with open("ledger", "a") as ledger:
            ledger.write(self.headers["Idempotency-Key"] + "\n")
        time.sleep(THINK)
        body = b'{"ok": true}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver)
if len(sys.argv) > 4:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[3], sys.argv[4])
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
