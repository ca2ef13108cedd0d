BEGIN TRANSACTION;
CREATE TABLE entries (
            id TEXT PRIMARY KEY, call_id TEXT NOT NULL, attempt INTEGER NOT NULL, kind TEXT NOT NULL,
            at_us BIGINT NOT NULL, day TEXT NOT NULL, gateway TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL,
            replica TEXT NOT NULL, tier_asked TEXT NOT NULL, tier TEXT NOT NULL, input_price BIGINT NOT NULL,
            output_price BIGINT NOT NULL, multiple_milli BIGINT NOT NULL, amount BIGINT NOT NULL,
            outcome TEXT NOT NULL, prompt_tokens BIGINT NOT NULL, output_tokens BIGINT NOT NULL, seat_us BIGINT NOT NULL
        , auto TEXT NOT NULL DEFAULT '', all_full BIGINT NOT NULL DEFAULT 0);
INSERT INTO "entries" VALUES('01a1f425fef89d3952f2710771a87061:1:reserved','01a1f425fef89d3952f2710771a87061',1,'reserved',1795097493241005,'2026-11-19','gw-9bba8d43/1','key-0000000001','quick','http://127.0.0.1:18101','standard','standard',1000000,10000000,1000,680,'',0,0,0,'',0);
INSERT INTO "entries" VALUES('01a1f425fef89d3952f2710771a87061:1:served','01a1f425fef89d3952f2710771a87061',1,'served',1795097493343560,'2026-11-19','gw-9bba8d43/1','key-0000000001','quick','http://127.0.0.1:18101','standard','standard',1000000,10000000,1000,209,'finished',9,20,102600,'',0);
INSERT INTO "entries" VALUES('01a1f425fef89d3952f2710771a87061:1:released','01a1f425fef89d3952f2710771a87061',1,'released',1795097493343560,'2026-11-19','gw-9bba8d43/1','key-0000000001','quick','http://127.0.0.1:18101','standard','standard',1000000,10000000,1000,-680,'finished',0,0,0,'',0);
INSERT INTO "entries" VALUES('01a1f425ff607d2cff95d2ecccce84f0:1:reserved','01a1f425ff607d2cff95d2ecccce84f0',1,'reserved',1795097493356308,'2026-11-19','gw-9bba8d43/1','key-0000000002','quick','http://127.0.0.1:18101','fast','fast',1000000,10000000,2100,1428,'',0,0,0,'',0);
INSERT INTO "entries" VALUES('01a1f425ff607d2cff95d2ecccce84f0:1:served','01a1f425ff607d2cff95d2ecccce84f0',1,'served',1795097493458732,'2026-11-19','gw-9bba8d43/1','key-0000000002','quick','http://127.0.0.1:18101','fast','fast',1000000,10000000,2100,439,'finished',9,20,102559,'',0);
INSERT INTO "entries" VALUES('01a1f425ff607d2cff95d2ecccce84f0:1:released','01a1f425ff607d2cff95d2ecccce84f0',1,'released',1795097493458732,'2026-11-19','gw-9bba8d43/1','key-0000000002','quick','http://127.0.0.1:18101','fast','fast',1000000,10000000,2100,-1428,'finished',0,0,0,'',0);
INSERT INTO "entries" VALUES('01a1f425ffd64c4c80029cfb939aad0d:1:reserved','01a1f425ffd64c4c80029cfb939aad0d',1,'reserved',1795097493463360,'2026-11-19','gw-9bba8d43/1','key-0000000001','slow','http://127.0.0.1:18102','fast','fast',1000000,10000000,2100,1426,'',0,0,0,'',0);
INSERT INTO "entries" VALUES('01a1f425ffd64c4c80029cfb939aad0d:1:served','01a1f425ffd64c4c80029cfb939aad0d',1,'served',1795097493851234,'2026-11-19','gw-9bba8d43/1','key-0000000001','slow','http://127.0.0.1:18102','fast','fast',1000000,10000000,2100,439,'finished',9,20,388037,'',0);
INSERT INTO "entries" VALUES('01a1f425ffd64c4c80029cfb939aad0d:1:refunded','01a1f425ffd64c4c80029cfb939aad0d',1,'refunded',1795097493851234,'2026-11-19','gw-9bba8d43/1','key-0000000001','slow','http://127.0.0.1:18102','fast','fast',1000000,10000000,2100,-230,'finished',0,0,0,'',0);
INSERT INTO "entries" VALUES('01a1f425ffd64c4c80029cfb939aad0d:1:released','01a1f425ffd64c4c80029cfb939aad0d',1,'released',1795097493851234,'2026-11-19','gw-9bba8d43/1','key-0000000001','slow','http://127.0.0.1:18102','fast','fast',1000000,10000000,2100,-1426,'finished',0,0,0,'',0);
CREATE TABLE keys (
            id TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, version BIGINT NOT NULL, key_json TEXT NOT NULL
        );
INSERT INTO "keys" VALUES('key-0000000001','6703b5121f784cb7c64680c6b2a3292b35caecc5caf8acf86bf1ab394c7b9d24',1,'{"id":"key-0000000001","hash":"6703b5121f784cb7c64680c6b2a3292b35caecc5caf8acf86bf1ab394c7b9d24","name":"plain","version":1}');
INSERT INTO "keys" VALUES('key-0000000002','84bfe4b77d9a8964620c2c6e8ae49484f6b7cbdbf8176c43cd74463fec1ed2ee',2,'{"id":"key-0000000002","hash":"84bfe4b77d9a8964620c2c6e8ae49484f6b7cbdbf8176c43cd74463fec1ed2ee","name":"frugal","tiers":["standard","fast"],"budget_day":100000,"budget_month":200000,"version":2}');
INSERT INTO "keys" VALUES('key-0000000003','ee17463576658903fe03ec0f190bf8bfa0dedfe073f097fd95841134c94de614',3,'{"id":"key-0000000003","hash":"ee17463576658903fe03ec0f190bf8bfa0dedfe073f097fd95841134c94de614","revoked_us":1,"version":3}');
CREATE TABLE migrations (name TEXT PRIMARY KEY);
INSERT INTO "migrations" VALUES('2026-11-15-entries');
INSERT INTO "migrations" VALUES('2026-11-15-keys');
INSERT INTO "migrations" VALUES('2026-11-15-slices');
INSERT INTO "migrations" VALUES('2026-11-15-auto');
CREATE TABLE slices (
            id TEXT PRIMARY KEY, key TEXT NOT NULL, period TEXT NOT NULL, gateway TEXT NOT NULL,
            amount BIGINT NOT NULL, at_us BIGINT NOT NULL
        );
INSERT INTO "slices" VALUES('gw-9bba8d43/1:key-0000000002:2026-11-19:1','key-0000000002','2026-11-19','gw-9bba8d43/1',6250,1795097493345147);
INSERT INTO "slices" VALUES('gw-9bba8d43/1:key-0000000002:2026-11:2','key-0000000002','2026-11','gw-9bba8d43/1',12500,1795097493354890);
CREATE INDEX entries_by_call ON entries (call_id);
CREATE INDEX entries_by_day ON entries (day, key);
CREATE INDEX entries_by_gateway ON entries (gateway, key, day);
CREATE INDEX keys_by_version ON keys (version);
CREATE INDEX slices_by_period ON slices (key, period);
CREATE INDEX slices_by_gateway ON slices (gateway);
COMMIT;
