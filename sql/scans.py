"""stand-in"""
HIDDEN_LSN = "__ducktail_lsn"
def bindable(session, node): return node.text
def run_query(session, statement, parameters): raise NotImplementedError; yield
run_write = run_definition = run_query
